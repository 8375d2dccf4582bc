// Ties each unit in the output to its row in the table, both ways.
"use strict";

(() => {
  const lit = (index, on) => {
    for (const element of document.querySelectorAll(`[data-index="${CSS.escape(index)}"]`)) {
      element.classList.toggle("lit", on);
    }
  };
  for (const element of document.querySelectorAll("[data-index]")) {
    for (const [name, on] of [["pointerenter", true], ["pointerleave", false], ["focusin", true], ["focusout", false]]) {
      element.addEventListener(name, () => lit(element.dataset.index, on));
    }
  }
})();
