import react from "@vitejs/plugin-react";
import { defineConfig } from "vite";

const server = process.env.COGNIZES_URL ?? "http://127.0.0.1:8000";

export default defineConfig({
  plugins: [react()],
  // Same origin for the browser, so there is no CORS to configure.
  server: { proxy: { "/copilotkit": server } },
});
