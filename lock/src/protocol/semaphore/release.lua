-- Ends one hold or some of its permits, or takes back its ticket, and serves the line.
--
-- KEYS, ARGV[1] to ARGV[5]  see the settle step; 0 permits for all that the hold has
-- ARGV[6]  the first of the permits that end
-- ARGV[7]  the ticket, if it may be in line; absent if not
--
-- Reply: 1 if all of them were there, 0 if one was not: released before, or expired.
--
-- May be repeated: the second time finds nothing and changes nothing.

if ARGV[7] and KEYS[4] then
  pcall('ZREM', KEYS[4], ARGV[7])
end
local client, _, _, _, start = identify(ARGV[2])
local first, count, removed = tonumber(ARGV[6]), tonumber(ARGV[3]), 0
if client and count > 0 then
  removed = take(start, first, count)
elseif client then
  repeat
    local one = take(start, removed, 1)
    removed = removed + one
  until one == 0
end
serve()
finish()
return removed > 0 and removed >= count and 1 or 0
