#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs/troubleshooting.md quotes texts of the library and its tools: their sources must have them. Names, numbers and what is left out part
a quotation. Each part with a few words must be made of strings of one file, two words or more of each."""
import pathlib
import re
import sys
import unittest

ROOT = pathlib.Path(sys.argv.pop(1) if len(sys.argv) > 1 else ".")
LITERAL = r'"(?:[^"\\\n]|\\.)*"'
WORDS_OF_A_PART = 3
GAP = r"\{\}|[()]|\.\.\.|\b[A-Z][A-Z_]{3,}\b|\b\d+\b|\btr[A-Z]\w+|(?<!\w)--?[a-z]+"
OTHERS = ("cannot open shared object file", "Cannot allocate memory", "transport retry counter exceeded", "Connection reset by remote peer")


def strings(source):
    """The string literals, adjacent ones joined, without the formats of placeholders."""
    source = re.sub(r"(?<!:)//[^\n]*", "", source)
    for joined in re.findall(rf"{LITERAL}(?:\s*{LITERAL})*", source):
        text = "".join(part[1:-1] for part in re.findall(LITERAL, joined))
        yield re.sub(r"\{[^{}]*\}", "{}", text.replace('\\"', '"').replace("\\n", "\n"))


def quotations(page):
    """What stands between backticks in the first column of tables of texts."""
    in_texts = False
    for line in page.splitlines():
        if not line.startswith("|"):
            in_texts = False
        elif line.startswith("| text |"):
            in_texts = True
        elif in_texts:
            yield from re.findall(r"`([^`]+)`", line.split(" | ")[0])


def parts(quotation):
    for others in OTHERS:
        quotation = quotation.replace(others, "{}")
    for part in re.split(GAP, quotation):
        part = part.strip(" ;,:()'?")
        if len(re.findall(r"[A-Za-z_]{2,}", part)) >= WORDS_OF_A_PART:
            yield part


def is_made_of(part, known):
    words = part.split()

    def is_made_from(at):
        least = min(2, len(words) - at) if at < len(words) and len(words[at]) > 2 else 1  # a unit may stand alone
        return at == len(words) or any(" ".join(words[at:end]) in known and is_made_from(end) for end in range(len(words), at + least - 1, -1))

    return is_made_from(0)


class Troubleshooting(unittest.TestCase):
    maxDiff = None

    def test_quotations_are_texts_of_the_sources(self):
        files = [file for folder in ("src", "tools", "python/treering", "python/src", "bench/peers") for file in (ROOT / folder).rglob("*")
                 if file.is_file() and file.suffix in (".cpp", ".h", ".py", "")]
        sources = ["\n\n".join(strings(file.read_text())) for file in files]
        page = (ROOT / "docs" / "troubleshooting.md").read_text()
        wanted = [(quotation, part) for quotation in quotations(page) for part in parts(quotation)]
        self.assertGreater(len(wanted), 60)
        unknown = [f"{part!r} of {quotation!r}" for quotation, part in wanted if not any(is_made_of(part, source) for source in sources)]
        self.assertEqual(unknown, [], "no source says these")

    def test_what_no_source_says_is_found(self):
        page = "| text | cause |\n|---|---|\n| `rank {} eats the {} of others`, `it is {}` | x |\n\n| result |\n| `not a text of this` |\n"
        self.assertEqual([list(parts(q)) for q in quotations(page)], [[], []])
        page = page.replace("eats the {}", "eats the lunch {}")
        self.assertEqual([list(parts(q)) for q in quotations(page)], [["eats the lunch"], []])
        self.assertTrue(is_made_of("it eats the lunch", "who eats\n\nwhen it eats the\n\nthe lunch of"))
        self.assertFalse(is_made_of("it eats their lunch", "when it eats the\n\nthe lunch of"))
        self.assertEqual(list(strings('f("a {:.1f} " // no "x"\n  "b", "c\\n")')), ["a {} b", "c\n"])


if __name__ == "__main__":
    unittest.main()
