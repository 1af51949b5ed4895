/* The colours: those of the system, or those chosen here. Not a module, so that it acts before anything is drawn. */
"use strict";

(() => {
  const KEY = "avenor-theme";
  const CHOICES = ["system", "light", "dark"];

  // Storage may be switched off; the choice then lasts as long as the page.
  const stored = () => {
    try {
      return localStorage.getItem(KEY);
    } catch {
      return null;
    }
  };
  const store = (choice) => {
    try {
      localStorage.setItem(KEY, choice);
    } catch {
      /* see above */
    }
  };
  let choice = CHOICES.includes(stored()) ? stored() : "system";
  const apply = () => {
    document.documentElement.dataset.theme = choice;
  };
  apply();

  addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme");
    const show = () => {
      button.textContent = { system: "Auto", light: "Light", dark: "Dark" }[choice];
      button.setAttribute("aria-label", `${button.textContent}: colours, press to change`);
    };
    button.addEventListener("click", () => {
      choice = CHOICES[(CHOICES.indexOf(choice) + 1) % CHOICES.length];
      store(choice);
      apply();
      show();
    });
    show();
  });
})();
