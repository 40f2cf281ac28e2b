from study import main

raise SystemExit(main())
