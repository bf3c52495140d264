"""What a picture shows, before anything is drawn."""
