// fsguard's plugin for opencode: tells each session before it overwrites another one's unseen work.
// Made by `fsguard hooks install opencode`, taken away by `fsguard hooks uninstall opencode`.
// Whatever goes wrong with fsguard, opencode goes on as if this file were not here.

import { spawn } from "node:child_process"

const FSGUARD = "fsguard"
const PATIENCE_MS = 2500

/** What `fsguard hook opencode` answers to an event; {} when it has nothing to say, or is not there. */
function ask(event) {
  return new Promise((resolve) => {
    let text = ""
    let child
    const done = () => {
      clearTimeout(timer)
      try {
        resolve(JSON.parse(text) ?? {})
      } catch {
        resolve({})
      }
    }
    const timer = setTimeout(() => {
      text = ""
      child?.kill("SIGKILL")
      child?.stdout.destroy() // a child of its own may hold it open, and opencode could not end
      done()
    }, PATIENCE_MS)
    try {
      child = spawn(FSGUARD, ["hook", "opencode"], { stdio: ["pipe", "pipe", "ignore"] })
      child.on("error", done)
      child.on("close", done)
      child.stdout.setEncoding("utf8")
      child.stdout.on("data", (data) => {
        text += data
      })
      child.stdin.on("error", () => {})
      child.stdin.end(JSON.stringify(event))
    } catch {
      done()
    }
  })
}

export const Fsguard = async ({ directory }) => {
  const parents = new Map() // session -> the session that made it
  const shells = new Map() // call of a shell tool under way -> its session

  const hook = (name, input, output) =>
    ask({ hook: name, directory, input, output, parentID: parents.get(input.sessionID) })

  return {
    event: async ({ event }) => {
      const info = event?.properties?.info
      if (info?.parentID) parents.set(info.id, info.parentID)
      if (!["session.created", "session.deleted", "session.idle"].includes(event?.type)) return
      const session = info?.id ?? event.properties?.sessionID
      await hook("event", { sessionID: session, event })
      if (event.type === "session.deleted") parents.delete(session)
    },

    "tool.execute.before": async (input, output) => {
      if (input.tool === "bash") {
        shells.set(input.callID, input.sessionID)
        return
      }
      const said = await hook("tool.execute.before", input, { args: output.args })
      if (said.deny) throw new Error(said.deny)
    },

    "shell.env": async (input, output) => {
      const running = new Set(shells.values())
      const session =
        input.sessionID ?? shells.get(input.callID) ?? (running.size === 1 ? [...running][0] : undefined)
      if (!session) return // a terminal of the user's
      const said = await hook("shell.env", { ...input, sessionID: session }, {})
      Object.assign(output.env, said.env)
    },

    "tool.execute.after": async (input, output) => {
      shells.delete(input.callID)
      const said = await hook("tool.execute.after", input, {})
      if (said.context && typeof output?.output === "string") output.output += `\n\n${said.context}`
    },
  }
}
