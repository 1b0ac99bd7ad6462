"""What trains or counts for the book and writes the records that its chapters read."""
