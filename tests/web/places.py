"""Where the parts of a page are on the screen, all measured at the same moment."""

MEASURE = """async (selectors) => {
  const frame = () => new Promise(requestAnimationFrame);
  await frame().then(frame); // by then the page has fitted sizes to each other
  const placeOf = (node) => node.getBoundingClientRect().toJSON();
  return selectors.map((each) => Array.from(document.querySelectorAll(each), placeOf));
}"""


def places(page, *selectors):
    """Return a list for each selector: the DOMRect of each element that matches it.

    Several calls of bounding_box() would disagree if the page drew between them.
    """
    return page.evaluate(MEASURE, selectors)
