"""What avenor's parts say to each other and what it means. Pure: no I/O, no trio, no clock."""
