// Package plugins is the plugin watcher: it finds the sockets on which drivers offer themselves,
// asks what they are, hands them to the handler of their type, and tells them whether they are
// registered.
//
// Owns: <root>/plugins_registry, and the registrations of what listens there; nothing of it
// outlives the agent.
// Reads: the sockets in it, through the service pluginregistration.Registration that plugins serve.
// Never: keeps a connection to a plugin, calls anything else of it, removes a socket.
package plugins
