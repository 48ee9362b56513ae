// What scrolls sideways can be reached by keyboard, and has a name.
const name = document.documentElement.lang.startsWith("zh") ? "可以左右捲動" : "scrolls sideways";
function mark() {
  for (const box of document.querySelectorAll(".article-container pre, .table-wrapper, .output")) {
    if (box.scrollWidth > box.clientWidth && getComputedStyle(box).overflowX !== "visible") {
      box.tabIndex = 0;
      box.setAttribute("role", "group");
      box.setAttribute("aria-label", name);
    }
  }
}
mark();
addEventListener("resize", mark);
