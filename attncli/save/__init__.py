"""Arrays and bytes become whole files, in the formats that attncli reads."""
