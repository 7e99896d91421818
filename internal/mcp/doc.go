// Package mcp is a server of the Model Context Protocol whose tools run in boxes:
// what an agent asks for is run as a call of package sandbox is, each in a fresh
// box on one workspace, within the options and the policy that the sandbox was made
// with.
//
// Every tool runs in a box, reading and writing of files too. So a policy's
// allowChanges holds for each, whatever tool it is; no link that code has left
// leads one of them out of the workspace; and what a tool needs besides sh (cat,
// grep, find, ls) is the box's own.
//
// The parts: calls.go turns arguments of tools into calls and back, as values;
// server.go applies them.
package mcp
