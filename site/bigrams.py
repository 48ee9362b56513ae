"""Search that finds Chinese: every two neighbouring characters are one word of the index.

Sphinx's own way cuts a text into words with a dictionary, and cuts the question not at all: a term
is found only where the dictionary happens to cut the same. Pairs need no dictionary, and any
phrase of two characters or more is found. Words in Latin letters are stemmed as in English.
"""

from __future__ import annotations

import re

from sphinx.search.en import SearchEnglish

_HAN = "\u3400-\u9fff\uf900-\ufaff"  # CJK ideographs, as they stand in a character class
_TOKEN = re.compile(rf"[{_HAN}]+|[^\W{_HAN}]+")


class SearchBigrams(SearchEnglish):
    """Chinese in pairs of characters, the rest as English."""

    lang = "zh_TW"
    # The same in the browser, where the question is split. A single character is a word of its
    # own there and matches no pair; Sphinx does not look for parts of words this short.
    js_splitter_code = r"""
function splitQuery(query) {
  const tokens = query.match(/[\u3400-\u9fff\uf900-\ufaff]+|[\p{Letter}\p{Number}_]+/gu) || [];
  return tokens.flatMap((token) => {
    const found = [];
    let latin = "";
    for (const part of token.split(/([\u3400-\u9fff\uf900-\ufaff]+)/u)) {
      if (part === "") continue;
      if (!/[\u3400-\u9fff\uf900-\ufaff]/u.test(part)) { found.push(part); continue; }
      if (part.length === 1) found.push(part);
      for (let i = 0; i + 1 !== part.length; i++) found.push(part.slice(i, i + 2));
    }
    return found;
  });
}
"""

    def split(self, input: str) -> list[str]:
        """Pairs of Chinese characters, and words."""
        found: list[str] = []
        for token in _TOKEN.findall(input):
            if len(token) == 1 or not re.match(f"[{_HAN}]", token):
                found.append(token)
            else:
                found += [token[i : i + 2] for i in range(len(token) - 1)]
        return found


class SearchBigramsInEnglish(SearchBigrams):
    """The same for the English pages: they hold Chinese terms too."""

    lang = "en"
