"""Small networks by three authors, each in a style of their own: what generated source is read beside."""
