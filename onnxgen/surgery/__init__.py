"""Changes of a module in memory: its parts are found by what it computes, and its head replaced. Imports torch."""
