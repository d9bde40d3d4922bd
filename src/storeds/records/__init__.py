"""Records: fields, their encoding, checksums, columns and selection by value."""
