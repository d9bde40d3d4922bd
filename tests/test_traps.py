"""What a new user would run into, item by item: each scenario once led to a wrong model or a riddle, without an error."""

from __future__ import annotations

# 1. Validation data in training

# 2. Frozen epochs

# 3. Several images in a sample

# 4. Channels-last arrays

# 5. Partly read files

# 6. External randomness

# 7. Re-encoding

# 8. Missing labels

# 9. Records that moved, columns that changed

# 10. A damaged LMDB file

# 11. Full disks, leftovers, two writers, deadlines

# 12. Hostile text

# 13. Interpreter exit

# 14. Configs in every form

# 15. Folders of 🤗 datasets, cut files, appending

# 16. The command line

# 17. One picture a file

# 18. Names that look like classes or pairs

# 19. Opaque datasets

# 20. Trailing NUL bytes

# 21. LMDB entries that are not records

# 22. Two readings of one store

# 23. Layouts of well-known tools

# 24. Hidden folders
