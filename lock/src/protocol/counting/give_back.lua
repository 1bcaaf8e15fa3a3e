-- Gives permits back, whoever took them.
--
-- KEYS, ARGV[1] to ARGV[5]  see the count step; the hold is the request
--
-- Reply: how many are free.
--
-- May be repeated for a minute: what it did is remembered under its id.

if not call('GET', KEYS[3]) then
  call('SET', KEYS[3], ARGV[3], 'PX', 60000)
  free = free + tonumber(ARGV[3])
end
serve()
finish(true)
return free
