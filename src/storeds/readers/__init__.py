"""What turns records into samples."""
