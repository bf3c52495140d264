"""What a file holds: members, shapes, numbers."""
