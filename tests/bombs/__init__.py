"""Files of at most 10 KB that ask for far more than they hold, and what they may cost."""
