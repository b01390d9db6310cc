"""The pages of this folder as a site: `make docs`."""

project = "Protosphere"
author = "The Protosphere developers"
extensions = ["myst_nb", "sphinx_copybutton", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
autodoc_member_order = "bysource"
autodoc_typehints = "description"
# what docstrings have between backticks
default_role = "code"
# the second is where myst-nb lays a notebook's pictures
exclude_patterns = ["_build", "jupyter_execute"]
html_theme = "furo"
html_title = "Protosphere"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_copyright = False
# a link to a heading names it as a forge does
myst_heading_anchors = 4
# a notebook's outputs are those that it holds; a test runs it
nb_execution_mode = "off"
# what a shell prints has no language, and words between two dollars are no formula
highlight_language = "none"
myst_enable_extensions: list[str] = []
# the prompt of a shell is not copied
copybutton_prompt_text = "$ "
