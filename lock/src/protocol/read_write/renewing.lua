local always = false

