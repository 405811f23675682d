"""Price books: their entries, reading one, comparing two, what one covers; and the books shipped with the package.

Every figure of the shipped books is an example with its source and date.
"""
