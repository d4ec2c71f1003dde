"""Where the data comes from, and how it is fed to a model."""
