// Set formulas by MathJax: a list of [TeX, display] comes in, their HTML and its style sheet go out.
"use strict";

const { readFileSync } = require("fs");

const folder = process.argv[2];
const formulas = JSON.parse(readFileSync(0, "utf8"));

require(`${folder}/node-main.js`).init({
  loader: {
    paths: { mathjax: folder },
    load: ["adaptors/liteDOM", "input/tex-base", "[tex]/ams", "output/chtml", "a11y/assistive-mml"],
    versionWarnings: false,
    require,
  },
  tex: { packages: ["base", "ams"], formatError: (_, error) => { throw error; } },
  chtml: { fontURL: "mathjax", matchFontHeight: false, adaptiveCSS: true },
}).then(MathJax => {
  // Scripts at every level are 79 % of a formula's size, so that a phone shows no letter below 11 pixels.
  const { MmlMath } = MathJax._.core.MmlTree.MmlNodes.math;
  Object.assign(MmlMath.defaults, { scriptsizemultiplier: 0.79, scriptminsize: "0.79em" });
  const adaptor = MathJax.startup.adaptor;
  const html = formulas.map(([tex, display]) => adaptor.outerHTML(MathJax.tex2chtml(tex, { display })));
  const style = adaptor.textContent(MathJax.chtmlStylesheet());
  process.stdout.write(JSON.stringify({ html, style }));
}).catch(error => {
  console.error(error);
  process.exit(1);
});
