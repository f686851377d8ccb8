// Colours: of the page, light or dark, and of values on a map.

const wantsDark = matchMedia("(prefers-color-scheme: dark)");

function isDark() {
  return document.documentElement.dataset.theme === "dark";
}

function ofPage(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

// The button that switches between light and dark; `changed` draws the charts again.
function themeSwitch(changed) {
  const button = document.getElementById("theme");
  const name = () => { button.textContent = isDark() ? "Light colours" : "Dark colours"; };
  const turn = (dark) => {
    document.documentElement.dataset.theme = dark ? "dark" : "light";
    name();
    changed();
  };
  button.hidden = false;
  button.addEventListener("click", () => turn(!isDark()));
  wantsDark.addEventListener("change", () => turn(wantsDark.matches));
  name();
}

// Scale of the map: from the second to the 98th percentile, so that a few extremes do not hide
// the others; around its middle if it has one.
class ColorScale {
  constructor(values, middle, scales) {
    const sorted = known(values);
    let [low, high] = sorted.length ? [quantile(sorted, 0.02), quantile(sorted, 0.98)] : [0, 1];
    this.clipped = sorted.length > 0 && (sorted[0] < low || sorted[sorted.length - 1] > high);
    if (middle !== null) {
      const reach = Math.max(middle - low, high - middle) || 1;
      [low, high] = [middle - reach, middle + reach];
      if (middle > 0 && sorted.length && sorted[0] >= 0) low = Math.max(0, low);
    }
    Object.assign(this, { low, high, middle });
    this.colors = middle === null ? scales.sequential : scales.diverging;
  }

  color(value) {
    const { low, high, middle, colors } = this;
    let place = high > low ? (value - low) / (high - low) : 0.5;
    if (middle !== null) {
      const reach = value < middle ? middle - low : high - middle;
      place = 0.5 + (reach ? (value - middle) / (2 * reach) : 0);
    }
    const at = Math.round(Math.min(1, Math.max(0, place)) * (colors.length - 1));
    return colors[at];
  }
}
