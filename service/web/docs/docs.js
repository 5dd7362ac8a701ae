/** Swagger UI of the service's own OpenAPI document, in the reader's light or dark scheme. */
const dark = matchMedia("(prefers-color-scheme: dark)");
const adapt = () => document.documentElement.classList.toggle("dark-mode", dark.matches);

dark.addEventListener("change", adapt);
adapt();

// The reader copies the first request: it goes to the address that was opened.
const HEED = "localhost:8000";
const spec = await (await fetch("openapi.json")).json();
const here = new URL(".", location).href.replace(/\/$/, "");
spec.info.description = spec.info.description.replaceAll(HEED, here);
SwaggerUIBundle({
  spec,
  dom_id: "#swagger-ui",
  deepLinking: true,
  defaultModelsExpandDepth: 0,
  tryItOutEnabled: true,
});
