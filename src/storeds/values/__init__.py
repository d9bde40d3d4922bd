"""Values that nobody declared: what bytes hold, which field holds a value, and the name of a field.

Sources of `pack` and stores of other tools use the same rules. Read ``infer.py`` first.
"""
