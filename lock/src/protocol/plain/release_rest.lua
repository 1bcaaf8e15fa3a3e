-- The release of a plain lock for which somebody waits. Keys, arguments and reply: release.lua.

return grant(ARGV[2] or 'P') and 2 or 1
