// Runs inside pi, which gets it with `-e`. pi asks nothing by itself: this asks whoever drives it before each tool that
// may change something, and blocks the tool unless the answer is Allow. Its command tells avenor that it is loaded.
import { readFileSync, realpathSync } from "node:fs";
import { dirname, join } from "node:path";

const HARMLESS = new Set(["read", "grep", "find", "ls"]);

export default function (pi) {
	const asks = process.env.AVENOR_PI_ASK !== "0";
	pi.registerCommand("avenor", {
		description: JSON.stringify({ version: piVersion(), asks }),
		handler: async () => {},
	});
	if (!asks) return;
	pi.on("tool_call", async (event, ctx) => {
		if (HARMLESS.has(event.toolName)) return undefined;
		const { toolCallId, toolName, input } = event;
		const title = JSON.stringify({ avenor: { toolCallId, toolName, input } });
		const choice = await ctx.ui.select(title, ["Allow", "Reject"], { signal: ctx.signal });
		return choice === "Allow" ? undefined : { block: true, reason: "The user rejected this tool call." };
	});
}

function piVersion() {
	let folder = dirname(realpathSync(process.argv[1]));
	while (dirname(folder) !== folder) {
		try {
			const { name, version } = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
			if (name && version) return version;
		} catch {
			// not the package's own folder yet
		}
		folder = dirname(folder);
	}
	return "";
}
