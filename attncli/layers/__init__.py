"""What a layer does around attention: projections and norms."""
