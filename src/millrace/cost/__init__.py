"""The papers' equations, as pure functions of sizes, workload and unit costs. Joins ask them; they know no join."""
