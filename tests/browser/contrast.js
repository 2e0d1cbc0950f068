// The contrast ratio of every text against what is behind it: [[ratio, text], ...].
const context = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
const known = new Map(); // a page has few colours, and thousands of texts
const numbers = (colour) => {
  if (!known.has(colour)) {
    context.clearRect(0, 0, 1, 1);
    context.fillStyle = colour;
    context.fillRect(0, 0, 1, 1);
    known.set(colour, [...context.getImageData(0, 0, 1, 1).data]);
  }
  return known.get(colour);
};
const linear = (value) => {
  const share = value / 255;
  return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
};
const luminance = ([red, green, blue]) =>
  0.2126 * linear(red) + 0.7152 * linear(green) + 0.0722 * linear(blue);
const behind = (element) => {
  for (let each = element; each; each = each.parentElement) {
    const colour = numbers(getComputedStyle(each).backgroundColor);
    if (colour[3] === 255) return colour;
  }
  return [255, 255, 255, 255];
};
const found = [];
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const text = walker.currentNode.textContent.trim();
  const element = walker.currentNode.parentElement;
  if (!text || !element.checkVisibility() || element.closest("noscript, script")) continue;
  if (element.closest(".hidden, .skip")) continue;
  const [one, other] = [numbers(getComputedStyle(element).color), behind(element)].map(luminance);
  found.push([(Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05), text]);
}
return found;
