/** Swagger UI of the service's own OpenAPI document, in the reader's light or dark scheme. */
const dark = matchMedia("(prefers-color-scheme: dark)");
const adapt = () => document.documentElement.classList.toggle("dark-mode", dark.matches);

dark.addEventListener("change", adapt);
adapt();
SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#swagger-ui",
  deepLinking: true,
  defaultModelsExpandDepth: 0,
  tryItOutEnabled: true,
});
