// Package plugins is the plugin watcher: it finds the registration sockets of drivers, gets their
// information, passes them to the handler of their type, and notifies them of the registration
// status.
//
// Owns: <root>/plugins_registry, and the registrations of the plugins there; no state survives the
// agent.
// Reads: the sockets in it, through the service pluginregistration.Registration that plugins serve.
// Never: keeps a connection to a plugin, calls other services of it, removes a socket.
package plugins
