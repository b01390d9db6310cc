"""The picture of docs/architecture.md, drawn from the imports: `python -m tests.architecture` writes it anew.

A box is a room, a row a floor; a line leads to a room that the one above it imports, left out where another way leads
there. tests/test_floors.py holds the picture against the imports as they are.
"""

from pathlib import Path

from tests.test_floors import FLOORS, ROOT, files, imports, room_of, tree_of

PICTURE = ROOT / "docs" / "images" / "architecture.svg"
WIDTH, ROW, BOX_WIDTH, BOX_HEIGHT = 720, 56, 150, 30
# room -> what it is for, and where it stands, as a share of the width, so that no line crosses a box
ROOMS = {
    "protosphere": ("the Python API", 0.5),
    "cli": ("commands", 0.5),
    "comparison": ("many runs, one table", 0.35),
    "plans": ("what a run is to do", 0.15),
    "launch": ("starts a run", 0.42),
    "serving": ("predictions, exports", 0.8),
    "server_app": ("the rounds", 0.3),
    "client_app": ("training at a site", 0.8),
    "reports": ("pages and pictures", 0.3),
    "strategies": ("a method a file", 0.5),
    "record": ("what a run leaves", 0.3),
    "wire": ("messages", 0.3),
    "models": ("architectures", 0.8),
    "data": ("samples and partitions", 0.3),
    "prototypes": ("the papers' mathematics", 0.65),
    "core": ("settings, errors, files", 0.25),
}


def imported_rooms(root: Path) -> dict[str, set[str]]:
    """Room -> the rooms that its files import."""
    rooms: dict[str, set[str]] = {room: set() for floor in FLOORS for room in floor}
    for path in files(root):
        parts = path.relative_to(root).with_suffix("").parts
        module = ".".join(parts if parts[0] == "protosphere" else ("protosphere", *parts))
        room = room_of(module)
        for statement in imports(tree_of(path), module.rpartition(".")[0]):
            if (target := room_of(statement.module)) and target != room:
                rooms[room].add(target)
    return rooms


def direct_only(rooms: dict[str, set[str]]) -> dict[str, set[str]]:
    """The same without the rooms to which another import leads."""
    below: dict[str, set[str]] = {}
    for floor in reversed(FLOORS):
        for room in floor:
            below[room] = set().union(*({target, *below[target]} for target in rooms[room]))
    return {
        room: {target for target in targets if not any(target in below[other] for other in targets - {target})}
        for room, targets in rooms.items()
    }


def picture(rooms: dict[str, set[str]]) -> str:
    """The SVG."""
    places = {room: (WIDTH * ROOMS[room][1], 10 + ROW * row) for row, floor in enumerate(FLOORS) for room in floor}
    height = 20 + ROW * (len(FLOORS) - 1) + BOX_HEIGHT
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" '
        'role="img" aria-label="The rooms of Protosphere and what they import">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
    ]
    for room, targets in direct_only(rooms).items():
        x, y = places[room]
        for target in sorted(targets):
            end_x, end_y = places[target]
            lines.append(f'<path d="M{x:.0f} {y + BOX_HEIGHT:.0f} L{end_x:.0f} {end_y:.0f}" stroke="#8a94a6"/>')
    for room, (x, y) in places.items():
        lines += [
            f'<rect x="{x - BOX_WIDTH / 2:.0f}" y="{y:.0f}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="5" '
            'fill="#eef2f8" stroke="#44546a"/>',
            f'<text x="{x:.0f}" y="{y + 13:.0f}" text-anchor="middle" font-size="12" fill="#1b2430">{room}</text>',
            f'<text x="{x:.0f}" y="{y + 25:.0f}" text-anchor="middle" font-size="9" fill="#44546a">'
            f"{ROOMS[room][0]}</text>",
        ]
    return "\n".join([*lines, "</svg>"]) + "\n"


if __name__ == "__main__":
    PICTURE.write_text(picture(imported_rooms(ROOT)))
