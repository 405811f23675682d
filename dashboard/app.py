"""The entry point that `streamlit run` executes: the sidebar, and the page that was chosen."""

from __future__ import annotations

import streamlit as st

from dashboard import frame

st.set_page_config(page_title="ROSE", layout="wide")
page = st.navigation(
    [
        st.Page("pages/cost.py", title="Cost", default=True),
        st.Page("pages/device_time.py", title="Device time"),
        st.Page("pages/serving.py", title="Serving"),
        st.Page("pages/leases.py", title="Leases"),
        st.Page("pages/learning.py", title="Learning"),
    ]
)
frame.sidebar()
page.run()
