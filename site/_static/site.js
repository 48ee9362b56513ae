const chinese = document.documentElement.lang === "zh-TW";

// What scrolls sideways can be reached by keyboard, and has a name.
function mark() {
  for (const box of document.querySelectorAll(".article-container pre, .table-wrapper, .output")) {
    if (box.scrollWidth > box.clientWidth && getComputedStyle(box).overflowX !== "visible") {
      box.tabIndex = 0;
      box.setAttribute("role", "group");
      box.setAttribute("aria-label", chinese ? "可以左右捲動" : "scrolls sideways");
    }
  }
}
mark();
addEventListener("resize", mark);

// The theme has three asides. Two need names to be told apart; the switch in the third has its own.
document.querySelector(".announcement-content")?.setAttribute("role", "none");
for (const [name, words] of [
  [".sidebar-drawer", chinese ? "所有頁面" : "All pages"],
  [".toc-drawer", chinese ? "本頁內容" : "On this page"],
]) {
  document.querySelector(name)?.setAttribute("aria-label", words);
}

if (chinese) {
  // The theme has no words for these in any other language.
  for (const button of document.querySelectorAll(".theme-toggle")) {
    button.setAttribute("aria-label", "切換淺色、深色、自動");
  }
  // Sphinx's catalogue for Taiwan lacks the line that says how many pages a search found.
  const line = "Search finished, found one page matching the search query.";
  if (typeof Documentation !== "undefined" && !Documentation.TRANSLATIONS[line]?.[0]) {
    Documentation.TRANSLATIONS[line] = ["找到 ${resultCount} 頁。"];
  }
}
