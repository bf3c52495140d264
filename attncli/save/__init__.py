"""Arrays and bytes become whole files.

`attncli.save.files` puts bytes in place whole or not at all,
`attncli.save.formats` turns results into bytes, and `attncli.save.streaming`
gives an NPY file that is filled tile by tile.
"""
