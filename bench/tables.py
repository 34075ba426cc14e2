"""What the pages of report.py have in common."""


def table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def spread(rate: dict | None) -> str:
    if rate is None:
        return ""
    return f"{rate['median']:.3g} ({rate['min']:.3g} to {rate['max']:.3g})"
