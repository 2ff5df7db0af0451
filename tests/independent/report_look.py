#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The page of `attnhost report`, looked at in a headless browser, light and dark: every figure is shown, no
text is cut, and what is drawn stands out from the paper. A list of what is wrong, or None without a browser.
"""
import json
import re
import shutil
import subprocess
import tempfile

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
SCHEMES = {"light": "1", "dark": "0"}  # of Blink's setting preferredColorScheme

# Runs in the page; luminance and contrast are those of WCAG 2.
LOOK = r"""<script>
const wrong = [], paper = getComputedStyle(document.body).backgroundColor;
function luminance(color) {
    const parts = color.match(/[\d.]+/g).slice(0, 3).map(Number).map(
        part => part <= 10.3 ? part / 3294.6 : ((part / 255 + 0.055) / 1.055) ** 2.4);
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
}
function contrast(color) {
    const both = [luminance(color), luminance(paper)].sort((a, b) => b - a);
    return (both[0] + 0.05) / (both[1] + 0.05);
}
function inside(box, frame) {
    return box.left >= frame.left - 2 && box.right <= frame.right + 2 &&
           box.top >= frame.top - 2 && box.bottom <= frame.bottom + 2;
}
if (matchMedia("(prefers-color-scheme: dark)").matches != DARK) wrong.push("the wrong scheme");
if (luminance(paper) > 0.5 == DARK) wrong.push("paper " + paper);
if (document.documentElement.scrollWidth > innerWidth) wrong.push("wider than the window");
const figures = document.querySelectorAll("figure");
for (const figure of figures) {
    const title = figure.querySelector("figcaption").textContent, svg = figure.querySelector("svg");
    const frame = svg.getBoundingClientRect();
    if (frame.width < 300 || frame.height < 150) wrong.push(title + ": " + frame.width + " x " + frame.height);
    for (const text of svg.querySelectorAll("text")) {
        if (!text.textContent.trim()) continue;
        if (!inside(text.getBoundingClientRect(), frame)) wrong.push(title + ": cut: " + text.textContent);
        if (contrast(getComputedStyle(text).fill) < 4.5) wrong.push(title + ": pale: " + text.textContent);
    }
    let seen = 0;
    for (const mark of svg.querySelectorAll("path, use, polygon")) {
        const box = mark.getBoundingClientRect(), style = getComputedStyle(mark);
        const colors = [style.stroke, style.fill].filter(color => color.startsWith("rgb"));
        seen += box.width + box.height > 2 && inside(box, frame) && colors.some(color => contrast(color) > 2);
    }
    if (seen < 8) wrong.push(title + ": " + seen + " marks are seen");
}
document.body.innerHTML = "<pre>" + JSON.stringify({figures: figures.length, wrong}) + "</pre>";
</script></body>"""


def look(page, figures):
    """What is wrong with the text of a page of so many figures, by scheme."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if not browser:
        return None
    problems = []
    for scheme, setting in SCHEMES.items():
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/page.html"
            script = LOOK.replace("DARK", "true" if scheme == "dark" else "false")
            with open(path, "w", encoding="utf-8") as file:
                file.write(page.replace("</body>", script))
            done = subprocess.run(
                [browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}/profile",
                 f"--blink-settings=preferredColorScheme={setting}", "--window-size=900,1200", "--dump-dom",
                 f"file://{path}"], capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
        shown = re.search("<pre>(.*)</pre>", done.stdout, re.DOTALL)
        if not shown:
            return [f"{browser}, {scheme}: exit code {done.returncode}: {done.stderr[-500:]}"]
        seen = json.loads(shown.group(1).replace("&gt;", ">").replace("&lt;", "<").replace("&amp;", "&"))
        problems += [f"{scheme}: {text}" for text in seen["wrong"]]
        if seen["figures"] != figures:
            problems.append(f"{scheme}: {seen['figures']} figures, expected {figures}")
    return problems
