-- Sets how many permits a semaphore has in all.
--
-- KEYS, ARGV[1], ARGV[4], ARGV[5]  see the settle step: the capacity that the caller believes in is the new one
-- ARGV[6]  how long to keep the capacity, in milliseconds
--
-- Reply: 1. What is taken stays taken: after a lower number the free permits may be fewer than none, until enough came back.
--
-- May be repeated. Replicas may confirm it: something is written in any case.

if not keeps_capacity then
  return redis.error_reply('WRONGTYPE the key of the capacity holds something else')
end
capacity, settled = stated, true
free = capacity - taken
call('SET', KEYS[3], capacity, 'PX', ARGV[6])
serve()
finish(true, 0)
return 1
