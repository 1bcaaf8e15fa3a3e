-- Sets how many permits are free.
--
-- KEYS, ARGV[1] to ARGV[5]  see the count step; the hold is the request, and its permits are what is to be free
-- ARGV[6]  1 to set them only if nobody used the semaphore yet
--
-- Reply: 1 if they were set, 0 if it was in use.
--
-- May be repeated for a minute: what it did is remembered under its id.

local known = call('GET', KEYS[3])
if known then
  return tonumber(known)
end
if ARGV[6] == '1' and stored then
  call('SET', KEYS[3], 0, 'PX', 60000)
  serve()
  finish()
  return 0
end
call('SET', KEYS[3], 1, 'PX', 60000)
free = tonumber(ARGV[3])
serve()
finish(true)
return 1
