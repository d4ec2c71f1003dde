"""What people do wrong: options, data, modules and runs with drawn faults, and the commands that meet them."""
