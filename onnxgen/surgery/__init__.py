"""Changes to a module in memory: find its parts by what it computes, and replace its head. Imports torch."""
