"""What `fsguard report` prints: one module for each format, and the timeline they share."""
