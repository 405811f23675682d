"""The entry point of `streamlit run`."""

import streamlit as st

from dashboard import login

# A process spawned by the dashboard imports this file under another name and must not show a page.
if __name__ == "__main__":
    st.set_page_config(page_title="ROSE", layout="wide")
    page = login.navigation(  # The folder is not called `pages`: Streamlit would make pages of it without the sidebar.
        [
            st.Page("screens/overview.py", title="Overview", default=True),
            st.Page("screens/cost.py", title="Cost"),
            st.Page("screens/borrowing.py", title="Borrowing"),
            st.Page("screens/cost_per_correct.py", title="Cost per correct"),
            st.Page("screens/serving.py", title="Serving"),
            st.Page("screens/fleet.py", title="Fleet now"),
            st.Page("screens/runs.py", title="Runs"),
            st.Page("screens/books.py", title="Books"),
            st.Page("screens/trust.py", title="Trust"),
        ]
    )
    page.run()
