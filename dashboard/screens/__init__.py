"""The pages, one file each; `dashboard/app.py` lists them."""
