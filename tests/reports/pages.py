"""A report as its reader sees it: the elements and words of its page, and its pictures."""

from html.parser import HTMLParser

VOID = {"meta", "link", "img", "input"}
EVIL = "<script>alert('x')</script>&\"</td>"


class Outline(HTMLParser):
    """All elements with their attributes, and the text; fails if tags do not close in order."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.open, self.words = [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not self.open or self.open[-1] != "style":
            self.words.append(data)

    @property
    def text(self):
        return " ".join(self.words)

    def attributes_of(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


def outline(folder):
    return Outline((folder / "report.html").read_text("utf-8"))


def pictures(folder):
    files = {path.name for path in (folder / "pictures").iterdir()}
    names = {name.removesuffix(".svg") for name in files if name.endswith(".svg")}
    # each picture has a file of its numbers
    assert files == {f"{name}.{kind}" for name in names for kind in ("svg", "csv")}
    return names


SEPARATION, MAP = "distances-of-global-prototypes", "map-of-prototypes"
MARGINS = "margins-of-global-prototypes"
OF_ROUNDS = {"accuracy-over-rounds", "accuracy-over-bytes", "loss-over-rounds", "accuracy-by-client"}
EVERY = OF_ROUNDS | {"samples-by-client-and-class", SEPARATION, MARGINS, MAP}
CONFUSION = {"confusion"}
